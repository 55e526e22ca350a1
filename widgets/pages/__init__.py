"""Reports, tables and figures as HTML."""
