# Gymnasium needs only what pip installs.
