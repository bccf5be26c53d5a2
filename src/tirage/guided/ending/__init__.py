"""How a constrained text comes to its end in time: the way that is known (closing), and the fewest tokens (fewest)."""
