"""Tasks, evidence and datasets in a database; bundles in the object store."""
