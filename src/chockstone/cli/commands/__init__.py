"""Commands: their arguments, options and help. The work is done in the other rooms."""
