"""Ways to start a plan on its hosts. Each backend is one module with `start(...)`."""
