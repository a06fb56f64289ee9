"""The controllers that come with specdec, one module each; `plugin` announces them."""
