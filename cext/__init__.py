"""The C engine. Its only importer is appliance/engine/."""
