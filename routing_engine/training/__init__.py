"""Training and evaluation of gates and tables; the only torch code besides the engine."""
