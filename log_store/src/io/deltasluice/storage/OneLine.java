package io.deltasluice.storage;

import io.delta.storage.CloseableIterator;
import java.util.Collections;
import java.util.Iterator;

/** A file of one line that is not stored anywhere. */
final class OneLine implements CloseableIterator<String> {
  private final Iterator<String> line;

  OneLine(String line) {
    this.line = Collections.singleton(line).iterator();
  }

  @Override
  public boolean hasNext() {
    return line.hasNext();
  }

  @Override
  public String next() {
    return line.next();
  }

  @Override
  public void close() {}
}
