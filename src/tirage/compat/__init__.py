"""Other systems' own interfaces, under the names that their users know."""
