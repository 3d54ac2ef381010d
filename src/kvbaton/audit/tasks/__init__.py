"""Task sets: what a sender reads, and what its receiver is asked."""
