"""One process of `chockstone train`: its server, its trainer, its report and its signals."""
