"""HTTPS: the certificate of the server, and those of its clients."""

from __future__ import annotations

import ssl
from typing import Any

from tirage.errors import ParamsError
from tirage.server.options import Options

_OTHERS = ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs", "ssl_cert_reqs")


def tls_of(options: Options) -> dict[str, Any]:
    """uvicorn's settings for HTTPS; none without a certificate."""
    if options.ssl_certfile is None:
        return {}
    return {
        "ssl_certfile": options.ssl_certfile,
        "ssl_keyfile": options.ssl_keyfile,
        "ssl_keyfile_password": options.ssl_keyfile_password,
        "ssl_ca_certs": None if options.ssl_ca_certs is None else str(options.ssl_ca_certs),
        "ssl_cert_reqs": cert_reqs(options),
    }


def cert_reqs(options: Options) -> int:
    """Whether clients must show a certificate: as the operator says, else if there is something to check it by."""
    if options.ssl_cert_reqs is not None:
        return options.ssl_cert_reqs
    return ssl.CERT_NONE if options.ssl_ca_certs is None else ssl.CERT_REQUIRED


def check_tls(options: Options) -> None:
    """Raises ParamsError for certificates and keys that cannot be used, and for options that lack another."""
    if options.ssl_certfile is None:
        for name in _OTHERS:
            if getattr(options, name) is not None:
                raise ParamsError(f"--{name.replace('_', '-')} must go with --ssl-certfile, got it alone; give both")
        return
    if cert_reqs(options) != ssl.CERT_NONE and options.ssl_ca_certs is None:
        raise ParamsError("--ssl-cert-reqs must go with --ssl-ca-certs, got it alone; give both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Without a password the library would ask for it on the terminal.
    password = options.ssl_keyfile_password or ""
    try:
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, lambda: password)
    except (OSError, ssl.SSLError) as error:
        got = f"{options.ssl_certfile} and {options.ssl_keyfile or 'no --ssl-keyfile'}: {error}"
        raise ParamsError(f"--ssl-certfile must hold a certificate and --ssl-keyfile its key, got {got}") from None
    if options.ssl_ca_certs is None:
        return
    try:
        context.load_verify_locations(options.ssl_ca_certs)
    except (OSError, ssl.SSLError) as error:
        raise ParamsError(f"--ssl-ca-certs must hold certificates, got {options.ssl_ca_certs}: {error}") from None
