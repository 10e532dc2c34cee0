"""Strands: do each worker's work in order, on threads that all workers share."""
