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
 * The guard of one Python process ({@code guard_server.py}). Each question opens a TCP connection, which fails at once
 * if the process has ended.
 */
final class PythonGuard implements CommitGuard {
  private final InetSocketAddress address;
  private final String questionKey;
  private final String answerKey;
  private final long timeoutMillis;

  /**
   * @param port port on 127.0.0.1
   * @param questionKey secret that authenticates this JVM
   * @param answerKey secret that authenticates Python
   * @param timeoutMillis milliseconds to wait for an answer
   */
  PythonGuard(int port, String questionKey, String answerKey, long timeoutMillis) {
    address = new InetSocketAddress("127.0.0.1", port);
    this.questionKey = questionKey;
    this.answerKey = answerKey;
    this.timeoutMillis = timeoutMillis;
  }

  /** Returns the milliseconds to wait for an answer. */
  long timeoutMillis() {
    return timeoutMillis;
  }

  /** Makes sure that the Python process can be reached. */
  void connect() throws IOException {
    check("");
  }

  /**
   * Sends a question and returns the answer.
   *
   * @throws java.net.ConnectException the process has ended
   * @throws IOException there is no answer, or another process listens on the port
   */
  @Override
  public String check(String request) throws IOException {
    // An interrupt closes a channel, but not a socket.
    try (SocketChannel channel = SocketChannel.open(address)) {
      OutputStream out = channel.socket().getOutputStream();
      out.write((questionKey + "\n" + request + "\n").getBytes(StandardCharsets.UTF_8));
      BufferedReader answers =
          new BufferedReader(new InputStreamReader(channel.socket().getInputStream(), StandardCharsets.UTF_8));
      String key = answers.readLine();
      String answer = key != null && isAnswerKey(key) ? answers.readLine() : null;
      if (answer == null) {
        throw new IOException("the process that listens on " + address + " is not the Python process of this guard");
      }
      return answer;
    }
  }

  private boolean isAnswerKey(String key) {
    return MessageDigest.isEqual(key.getBytes(StandardCharsets.UTF_8), answerKey.getBytes(StandardCharsets.UTF_8));
  }
}
