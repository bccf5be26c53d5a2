"""Laws of drawn tokens for learners: log-probabilities with slopes, over the filters, edits and weights of a draw."""
