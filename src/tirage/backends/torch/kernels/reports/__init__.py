"""What a draw tells of the sets that it drew from, and the law that follows from that."""
