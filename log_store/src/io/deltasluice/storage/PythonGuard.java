package io.deltasluice.storage;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.ConnectException;
import java.net.SocketException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The guard of one Python process ({@code guard_server.py}). It decides on every commit, at the last moment before the
 * version file is put. Each request opens a connection to the process's Unix socket. It fails at once if the process
 * has ended.
 */
final class PythonGuard {
  private static final Logger LOG = LoggerFactory.getLogger(PythonGuard.class);

  private final UnixDomainSocketAddress address;

  /** Milliseconds to wait for an answer. */
  final long timeoutMillis;

  /** The process, if it is the driver's agent ({@link Agent}); else null. */
  private final Process agent;

  /** When the guard opens an automatic ticket. */
  volatile Guard.AutomaticLock automaticLock = Guard.AutomaticLock.NONE;

  /** Open until this JVM ends or {@link #abandon}. Then Python releases the locks of automatic tickets. */
  private SocketChannel lifeline;

  /**
   * @param path path of the socket
   * @param timeoutMillis milliseconds to wait for an answer
   * @param agent the process, if it is the driver's agent; else null
   */
  PythonGuard(String path, long timeoutMillis, Process agent) {
    address = UnixDomainSocketAddress.of(path);
    this.timeoutMillis = timeoutMillis;
    this.agent = agent;
  }

  /** Makes sure that the Python process can be reached. */
  void connect() throws IOException {
    send("");
    lifeline = open();
    lifeline.write(StandardCharsets.UTF_8.encode("lifeline\n"));
  }

  boolean isAgent() {
    return agent != null;
  }

  /** Gives up a process that cannot be asked: it releases the locks of automatic tickets. An agent is killed. */
  void abandon() {
    try {
      lifeline.close();
    } catch (IOException e) {
      // Then its process has ended.
      LOG.debug("a lifeline was not closed", e);
    }
    if (agent != null) {
      agent.destroyForcibly();
    }
  }

  /**
   * Sends a request and returns the answer.
   *
   * <p>Each request has {@code kind}, {@code table} (URI of the folder above {@code _delta_log}), {@code version} and
   * {@code attempt} (UUID of this attempt to put; in {@code lock} the name of the ticket, in {@code end} empty). A
   * request of an unknown kind is refused. The kinds are:
   *
   * <ul>
   *   <li>{@code commit}: May this version be put? Fields: {@code txn} ({@code commitInfo.txnId}, may be null),
   *       {@code operation} (may be null), {@code metadata} (whether the commit contains {@code metaData}),
   *       {@code blocks} (ids of the blocks to which the thread is bound, may be null), {@code ticket} (name of the
   *       commit's ticket, may be null), {@code write} (id of the operation attempt that the
   *       thread executes; absent if it executes none) and with it {@code retention_ms} (age at which VACUUM deletes
   *       files that belong to no commit), {@code observe} (whether a refusal is only logged), {@code footprint}
   *       (actions and partitions of the commit, see {@code CommitBody}; only if a block or the ticket locks
   *       partitions), {@code group} (see {@link LightTransaction#terms}; absent if the commit can have no members). Answer: {@code holds} (ids of the holds that cover the commit, each confirmed),
   *       {@code stamp} (object that the commit records), for a commit with {@code group} (see
   *       {@link LightTransaction#terms}) {@code members} (see {@link Guard.Permission}) and, for some automatic tickets, {@code restoration} (see
   *       {@link Guard.Permission}).
   *   <li>{@code turn}: Does the ticket of a waiting commit have its lock by now? Fields: {@code ticket},
   *       {@code staged} (the commit, see {@link Guard#describe}, with {@code hooks}, see {@link PostCommitHooks}, and for
   *       an automatic ticket the properties of {@link AutomaticTicket#describe}), {@code automatic} (whether to open
   *       the ticket if it is new), {@code observe}. Answer: {@code turn} (boolean) and, if a holder has committed it,
   *       {@code committed} (the version).
   *   <li>{@code lock}: Does an automatic ticket whose transaction has not begun have its lock by now? Fields:
   *       {@code ticket}, {@code automatic}. Answer: {@code turn} (boolean).
   *   <li>{@code outcome}: The outcome of a put for which a ticket had the lock; or the version of another writer that
   *       contains the commit of the ticket (then {@code attempt} is empty). Fields: {@code ticket},
   *       {@code outcome} and {@code ended_us} (see {@link Attempts#of}; a version of another writer has no time),
   *       {@code metrics}, {@code keeps_lock} (whether hooks need the lock of an
   *       automatic ticket). Answer: an empty object.
   *   <li>{@code end}: The transaction of an automatic ticket has ended. Fields: {@code ticket}, {@code puts} (the attempts
   *       under its hold, see {@link Attempts#of}). Answer: an empty object.
   * </ul>
   *
   * @param request JSON object
   * @return JSON object: the answer above, or {@code refused} (name of the error) and {@code message} (one sentence)
   * @throws ConnectException the process has ended
   * @throws IOException there is no answer
   */
  String send(String request) throws IOException {
    // An interrupt closes a channel, but not a socket.
    try (SocketChannel channel = open()) {
      ByteBuffer line = StandardCharsets.UTF_8.encode(request + "\n");
      while (line.hasRemaining()) {
        channel.write(line);
      }
      String answer =
          new BufferedReader(new InputStreamReader(Channels.newInputStream(channel), StandardCharsets.UTF_8)).readLine();
      if (answer == null) {
        throw new IOException("the Python process closed the connection without an answer");
      }
      return answer;
    }
  }

  private SocketChannel open() throws IOException {
    try {
      return SocketChannel.open(address);
    } catch (SocketException e) {
      if (Files.exists(address.getPath())) {
        throw e;
      }
      // A process that ends normally removes its socket.
      throw new ConnectException(address + " was removed");
    }
  }
}
