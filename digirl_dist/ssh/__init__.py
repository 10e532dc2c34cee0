"""SSH: connections that are verified and bounded in time, bulk files over them, and a server for the dry run."""
