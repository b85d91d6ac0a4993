"""Jobs of Spark. All of these run in one worker (tests/distribution.py), so that Java starts and warms up once."""
