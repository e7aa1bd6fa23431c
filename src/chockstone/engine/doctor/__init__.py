"""Compares store and catalog, repairs differences, and rebuilds a catalog from a store."""
