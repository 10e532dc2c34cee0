"""SSH: verified connections with time limits, bulk transfers over them, and a server for the dry run."""
