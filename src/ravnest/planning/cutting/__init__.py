"""Where a program may be cut, who owns which tensor, and the stage graphs that result."""
