# Gymnasium needs nothing beyond what pip brings.
