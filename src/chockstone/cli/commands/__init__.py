"""The commands: arguments and help texts. What they do is in the rooms beside."""
