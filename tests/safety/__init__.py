"""Random commands among other people's files: is every byte that is not goldstick's still there?"""
