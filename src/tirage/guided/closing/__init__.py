"""Completing a constrained text before its tokens run out: the known completion, and the search for a better one."""
