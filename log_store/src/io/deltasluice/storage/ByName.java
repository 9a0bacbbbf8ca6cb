package io.deltasluice.storage;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/** Calls of public methods by their names, for methods that differ between the supported releases. */
final class ByName {
  private ByName() {}

  /**
   * Calls a method, and throws what it throws.
   *
   * @throws NoSuchMethodError the target has no such method
   */
  static Object call(Object target, String name, Object... arguments) {
    Method method = find(target.getClass(), name, arguments);
    if (method == null) {
      throw new NoSuchMethodError(target.getClass().getName() + "." + name);
    }
    return invoke(target, method, arguments);
  }

  /** Invokes a method, and throws what it throws, also undeclared checked exceptions of Scala. */
  static Object invoke(Object target, Method method, Object... arguments) {
    try {
      return method.invoke(target, arguments);
    } catch (InvocationTargetException e) {
      throw ByName.<RuntimeException>unchecked(e.getCause());
    } catch (IllegalAccessException e) {
      throw new IllegalAccessError(method + ": " + e.getMessage());
    }
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> E unchecked(Throwable error) throws E {
    throw (E) error;
  }

  /** Calls the first of these static methods without arguments that the class has. */
  static Object callStatic(Class<?> type, String... names) {
    for (String name : names) {
      Method method = find(type, name);
      if (method != null) {
        return invoke(null, method);
      }
    }
    throw new NoSuchMethodError(type.getName() + "." + names[0]);
  }

  /** Returns the method that takes these arguments; null if there is none. */
  static Method find(Class<?> type, String name, Object... arguments) {
    for (Method method : type.getMethods()) {
      if (method.getName().equals(name) && accepts(method.getParameterTypes(), arguments)) {
        return method;
      }
    }
    return null;
  }

  private static boolean accepts(Class<?>[] types, Object[] arguments) {
    if (types.length != arguments.length) {
      return false;
    }
    for (int i = 0; i < types.length; i++) {
      Class<?> type = types[i] == long.class ? Long.class : types[i] == boolean.class ? Boolean.class : types[i];
      if (arguments[i] != null && !type.isInstance(arguments[i])) {
        return false;
      }
    }
    return true;
  }

  /** Returns whether an object is an instance of a class that some releases do not have. */
  static boolean isInstance(Object object, String type) {
    try {
      return Class.forName(type, false, object.getClass().getClassLoader()).isInstance(object);
    } catch (ClassNotFoundException e) {
      return false;
    }
  }
}
