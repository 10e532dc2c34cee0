"""The commands of ``digirl-dist``: one module each, named as the command (see ``cli.command``)."""
