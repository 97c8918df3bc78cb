"""The machine that runs the lab, as a tool: processes, namespaces, devices, and the session that owns them."""
