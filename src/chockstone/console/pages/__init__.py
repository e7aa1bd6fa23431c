"""One file per page: its routes and what it shows, as frozen dataclasses. Templates of the same name render them."""
