"""Problems out of a model: its forward as a graph, parts of that, and references made of them."""
