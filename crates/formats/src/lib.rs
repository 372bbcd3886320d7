//! Layouts other people own: InnoDB and Aria pages, redo logs, GTIDs, file names.
