"""For `import runs`: importlib mode does not put this folder on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
