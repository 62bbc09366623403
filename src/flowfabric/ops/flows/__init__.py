"""Operations on flows: submit and extend a graph, children, cancel, and what follows when members end."""
