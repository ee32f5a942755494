"""Board definitions, one file each. `weft.boards.board` imports every file in this folder."""
