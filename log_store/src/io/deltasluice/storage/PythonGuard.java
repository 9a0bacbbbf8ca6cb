package io.deltasluice.storage;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;

/**
 * The guard of one Python process, which is asked over a TCP connection of its own ({@code guard_server.py}): one
 * question a connection, so that a process that ended is found out at once.
 */
final class PythonGuard implements CommitGuard {
  private final InetSocketAddress address;
  private final String questionKey;
  private final String answerKey;
  private final long timeoutMillis;

  /**
   * @param port on 127.0.0.1
   * @param questionKey by which Python knows this JVM
   * @param answerKey by which this JVM knows Python
   * @param timeoutMillis to wait for an answer
   */
  PythonGuard(int port, String questionKey, String answerKey, long timeoutMillis) {
    address = new InetSocketAddress("127.0.0.1", port);
    this.questionKey = questionKey;
    this.answerKey = answerKey;
    this.timeoutMillis = timeoutMillis;
  }

  /** How long to wait for an answer. */
  long timeoutMillis() {
    return timeoutMillis;
  }

  /** Makes sure that Python can be reached, and is the right one. */
  void greet() throws IOException {
    check("");
  }

  /**
   * Returns the answer.
   *
   * @throws java.net.ConnectException the process has ended
   * @throws IOException no answer, or one of somebody else
   */
  @Override
  public String check(String request) throws IOException {
    // A channel, because an interrupt closes it.
    try (SocketChannel channel = SocketChannel.open(address)) {
      OutputStream out = channel.socket().getOutputStream();
      out.write((questionKey + "\n" + request + "\n").getBytes(StandardCharsets.UTF_8));
      BufferedReader answers =
          new BufferedReader(new InputStreamReader(channel.socket().getInputStream(), StandardCharsets.UTF_8));
      String key = answers.readLine();
      String answer = key != null && isAnswerKey(key) ? answers.readLine() : null;
      if (answer == null) {
        throw new IOException("what listens on " + address + " is not the Python process that was to be asked");
      }
      return answer;
    }
  }

  private boolean isAnswerKey(String key) {
    return MessageDigest.isEqual(key.getBytes(StandardCharsets.UTF_8), answerKey.getBytes(StandardCharsets.UTF_8));
  }
}
