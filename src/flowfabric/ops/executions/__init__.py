"""Operations that submit, read, change and remove executions."""
