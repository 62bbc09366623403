"""Operations on flows: submit and extend a graph, submit children, cancel, and react when members end."""
