"""The command `ideatree mcp`: lets a coding agent steer a search, as an MCP server."""
