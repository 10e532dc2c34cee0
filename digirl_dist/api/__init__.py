"""The public Python interface, which ``digirl_dist`` exports: drives fleets, reads runs, acts with policies."""
