"""The agent that clients run beside them; roost_agent.py is one file that needs nothing else."""
