"""Messages of other stores, decoded into changes of rows and of cells."""
