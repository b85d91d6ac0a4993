"""The running box: the binding to the engine, the network set-up, the lab, and what the machine must offer."""

__version__ = "0.1.0"
