"""Regular expressions: how they are read (Python's, ECMA-262's), what texts they have, and how they are printed."""
