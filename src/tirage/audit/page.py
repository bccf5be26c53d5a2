def audit_page(report):
    return ""
