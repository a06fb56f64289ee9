"""The gamma and lenience controllers that ship with specdec; `plugin` registers them."""
