"""What can be called: definitions, their schemas, the catalogue, and the tools of a folder."""
