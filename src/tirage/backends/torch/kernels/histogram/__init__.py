"""What the histogram of a row tells before any sum over the row is exact: where cuts lie, and between which bounds."""
