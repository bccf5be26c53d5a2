"""Fields of parameter classes: the rules that values keep, the records that hold them, and the types they accept."""
