"""Operations of people and supervisors: cancel, hold, replay, explain and lanes."""
