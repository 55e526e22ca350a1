"""The namespaces of tapescope: `ts.types`, `ts.orders`, `ts.hips`, `ts.studies`."""
